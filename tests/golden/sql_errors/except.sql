SELECT carrier FROM flights EXCEPT SELECT carrier FROM alerts
