"""What every test may ask for; the fixtures themselves stand in the modules named here."""

pytest_plugins = ["tests.services", "tests.jobs", "tests.kafka_target", "tests.lake"]
