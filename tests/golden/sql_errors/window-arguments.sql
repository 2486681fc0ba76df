SELECT count(*) AS n FROM HOP(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR) GROUP BY window_start
