SELECT carrier FROM flights WHERE carrier IN (SELECT carrier, level FROM alerts)
