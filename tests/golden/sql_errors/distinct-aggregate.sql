SELECT DISTINCT carrier, count(*) AS n FROM flights GROUP BY carrier
