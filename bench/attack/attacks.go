package main

import "slices"

// attacks returns all of them, by who makes them.
func attacks() []attack {
	return slices.Concat(outsiderAttacks(), gossipAttacks(), strangerAttacks(), memberAttacks())
}
