SELECT carrier
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at, delay) AS n FROM flights)
