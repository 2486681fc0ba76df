SELECT carrier FROM flights AS f WHERE g.delay > 1
