SELECT * FROM other.public.t
