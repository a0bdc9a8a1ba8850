def draw(curves): pass
