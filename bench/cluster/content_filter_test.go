package cluster

import (
	"context"
	"maps"
)

// intersect returns the entries of all whose keys are in some.
func intersect(all, some content) content {
	c := make(content)
	for key, value := range all {
		if _, ok := some[key]; ok {
			c[key] = value
		}
	}
	return c
}

// unexpired returns the entries of a kernel map except those whose records have expired.
func unexpired(ctx context.Context, n *remote, kernel, table content) (content, error) {
	expired, err := n.content(ctx, "/expired")
	c := maps.Clone(kernel)
	for key := range expired {
		if _, live := table[key]; !live {
			delete(c, key)
		}
	}
	return c, err
}
