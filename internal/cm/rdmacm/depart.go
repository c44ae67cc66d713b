package rdmacm

import "vrdma.dev/vrdma/internal/cm"

// Forsake removes a client whose state another daemon continues: peers notice nothing. It runs on the loop.
func (c *Client) Forsake() { c.discard() }

// Forsake removes the connections that belong to no client, which another daemon continues. It runs on the loop.
func (a *CMA) Forsake() { a.manager.Forsake(func(c *cm.Conn) bool { return c.Owner == nil }) }
