SELECT carrier, count(*) - (SELECT count(*) FROM alerts) AS n FROM flights
GROUP BY carrier
