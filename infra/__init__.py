"""Infrastructure: the dev stack, images, dashboards."""
