"""Where rows come from: pushdown, history, Kafka tail, decoders, watermarks, the handover between them."""
