SELECT a FROM flights AS f(a, b, c)
