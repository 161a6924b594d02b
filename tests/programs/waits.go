// Says READY and waits for its standard input to end; 16 MiB of its heap are in use.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	keep := make([]byte, 16<<20)
	for i := 0; i < len(keep); i += 4096 {
		keep[i] = 1
	}
	fmt.Println("READY")
	io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(os.Stderr, keep[len(keep)-1])
}
