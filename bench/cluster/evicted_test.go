package cluster

import (
	"context"
	"maps"
)

// within returns what is in all, of the keys of some.
func within(all, some content) content {
	c := make(content)
	for key, value := range all {
		if _, ok := some[key]; ok {
			c[key] = value
		}
	}
	return c
}

// unexpired returns what a kernel map holds, but for entries whose records have expired.
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
