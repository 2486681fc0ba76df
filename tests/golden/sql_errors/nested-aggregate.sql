SELECT carrier, max(sum(delay)) AS n FROM flights GROUP BY carrier
