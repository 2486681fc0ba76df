SELECT carrier
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY delay) AS n FROM flights)
WHERE n = 2
