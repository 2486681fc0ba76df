SELECT carrier,
       mode_of(delay) FILTER (WHERE delay > 1) AS n
FROM flights GROUP BY carrier
