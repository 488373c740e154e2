/* Kills its process, by SIGKILL, at a write to a file at an offset, or at something that it sends: whatever the file FUSE says. There
 * is no later moment at which it could tidy up, and none that a test could not choose. Or that file takes no write any more, as long
 * as the process lives. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum moment { BEFORE_WRITE, WITHIN_WRITE, AFTER_WRITE, BEFORE_SEND, NO_MORE_WRITES };

struct fuse {
	/* So many more of them, and it burns down; 0 if it does not burn. */
	int64_t left;
	int64_t moment;
};

static struct fuse *fuse;
/* The file that takes no write any more. */
static ino_t broken;

static ino_t inode(int file)
{
	struct stat stat;

	return fstat(file, &stat) ? 0 : stat.st_ino;
}

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
	if (last && fuse->moment == NO_MORE_WRITES) {
		__atomic_store_n(&broken, inode(file), __ATOMIC_SEQ_CST);
		last = 0;
	}
	if (__atomic_load_n(&broken, __ATOMIC_SEQ_CST) && inode(file) == broken) {
		errno = EIO;
		return -1;
	}
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
