SELECT carrier, count(*) AS n FROM flights GROUP BY ROLLUP (carrier)
