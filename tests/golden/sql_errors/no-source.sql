SELECT carrier
FROM flihgts
