SELECT count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '9999999999' DAY)
GROUP BY window_start, window_end
