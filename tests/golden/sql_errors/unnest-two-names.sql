SELECT a AS carrier FROM flights CROSS JOIN UNNEST(carrier) AS t(a, b)
