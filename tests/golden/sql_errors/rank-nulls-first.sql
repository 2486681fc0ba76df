SELECT carrier, delay
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY delay NULLS FIRST) AS n FROM flights)
WHERE n <= 2
