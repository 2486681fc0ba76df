SELECT carrier FROM flights, LATERAL (SELECT 1 AS x) AS q
