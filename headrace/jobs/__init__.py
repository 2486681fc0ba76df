"""Job specs, configuration, compiler, job store, supervisor: what CLI and API share."""
