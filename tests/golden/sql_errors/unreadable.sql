SELECT carrier
FROM flights WHERE (delay > 1
