SELECT carrier FROM flights WHERE count(*) > 1
