INSERT INTO out SELECT carrier FROM flights;
INSERT INTO out SELECT carrier FROM alerts
