SELECT carrier, NTILE(4) OVER (ORDER BY at) AS n, UPPER(carrier) OVER (ORDER BY at) AS u FROM flights
