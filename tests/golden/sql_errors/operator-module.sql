SELECT * FROM "os:system"(TABLE flights)
