SELECT carrier, string_agg(carrier, ',') AS n FROM flights GROUP BY carrier
