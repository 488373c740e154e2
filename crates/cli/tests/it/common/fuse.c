/* Kills its process, by SIGKILL, at a write to a file at an offset, or at something that it sends: whatever the file FUSE says. There
 * is no later moment at which it could tidy up, and none that a test could not choose. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum moment { BEFORE_WRITE, WITHIN_WRITE, AFTER_WRITE, BEFORE_SEND };

struct fuse {
	/* So many more of them, and it burns down; 0 if it does not burn. */
	int64_t left;
	int64_t moment;
};

static struct fuse *fuse;

__attribute__((constructor)) static void find(void)
{
	const char *path = getenv("FUSE");
	int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *page = mmap(NULL, sizeof(*fuse), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (page == MAP_FAILED)
		abort();
	fuse = page;
	close(file);
}

/* True if this is the one; of several threads only one is told so. */
static int burns_down(int sends)
{
	int64_t left;

	if (!fuse || (__atomic_load_n(&fuse->moment, __ATOMIC_SEQ_CST) == BEFORE_SEND) != sends)
		return 0;
	left = __atomic_load_n(&fuse->left, __ATOMIC_SEQ_CST);
	while (left > 0)
		if (__atomic_compare_exchange_n(&fuse->left, &left, left - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return left == 1;
	return 0;
}

static void die(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
	int last = burns_down(0);
	ssize_t done;

	if (last && fuse->moment == BEFORE_WRITE)
		die();
	/* Whole sectors, as a disk does. */
	if (last && fuse->moment == WITHIN_WRITE)
		count = count / 2 / 512 * 512;
	done = syscall(SYS_pwrite64, file, bytes, count, offset);
	if (last)
		die();
	return done;
}

ssize_t send(int socket, const void *bytes, size_t count, int flags)
{
	if (burns_down(1))
		die();
	return syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
}
