SELECT carrier FROM flights WHERE random() > 0.5
