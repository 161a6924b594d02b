// As waits.go, with cgo: threads come from pthread_create, and glibc's malloc is in use.
package main

/*
#include <stdlib.h>
static void use(void) { free(malloc(1000)); }
*/
import "C"

import (
	"fmt"
	"io"
	"os"
)

func main() {
	C.use()
	fmt.Println("READY")
	io.Copy(io.Discard, os.Stdin)
}
