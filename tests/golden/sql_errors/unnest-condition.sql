SELECT a AS carrier FROM flights LEFT JOIN UNNEST(carrier) AS t(a) ON a = carrier
