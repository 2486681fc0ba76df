SELECT carrier,
       f.dealy AS late
FROM flights AS f
