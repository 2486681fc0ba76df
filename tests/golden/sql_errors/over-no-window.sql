SELECT carrier, sum(delay) OVER v AS n FROM flights WINDOW w AS (ORDER BY at)
