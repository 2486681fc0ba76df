SELECT carrier, count(*) AS n FROM flights GROUP BY carrier
HAVING count(*) > (SELECT count(*) FROM alerts WHERE level > 1)
