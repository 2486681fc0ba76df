SELECT x.carrier FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR) x
JOIN TUMBLE(TABLE alerts, DESCRIPTOR(at), INTERVAL '2' HOUR) y
ON x.carrier = y.carrier AND x.window_start = y.window_start
