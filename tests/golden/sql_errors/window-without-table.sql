SELECT count(*) AS n FROM TUMBLE(flights, INTERVAL '1' HOUR) GROUP BY window_start
