SELECT carrier, sum(delay) OVER (ORDER BY at RANGE 5 PRECEDING) AS n FROM flights
