// SPDX-License-Identifier: GPL-2.0-only
/*
 * Creates and deletes files on a shared file system so that their blocks are
 * used again and again, by the node that freed them and by the other one.
 *
 *	churn work|look|drain DIR SELF PEER SECONDS BATCH
 *
 * Two threads fill directories with files. A file's content has its name and
 * the number of the name's life. Then they hand each directory over: every
 * fourth to the other node, the rest to this one. Its holder checks every file,
 * and deletes it. Now and then thread 0 lets the kernel drop its cache of
 * deleted inodes, so that their locks go. A second later the DLM's records of
 * their names go, too. So each REMOVE races with the creation that uses the
 * name again.
 *
 * "look" only checks what has been handed to this node; "drain" deletes it, too.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define THREADS		2
#define BACKLOG		6	/* directories that may wait for a node */
#define BLOCKS		(1 << 20)
#define SAID		20	/* so many problems are described */
#define SHARED_ROUND	4	/* each of these goes to the other node */
#define DROP_ROUND	3	/* after each of these caches are dropped */

struct worker {
	int id;
	pthread_t thread;
};

static const char *top;
static int self, peer, batch;
static time_t deadline;
static atomic_ulong created, reused, checked, wrong, full, failed, unlinked;
static atomic_uchar used[BLOCKS];	/* blocks that were an inode of ours before */

static time_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec;
}

static int goes_to(int round)
{
	return round % SHARED_ROUND ? self : peer;
}

static void problem(atomic_ulong *counter, const char *format, ...)
{
	va_list args;

	if (atomic_fetch_add(counter, 1) >= SAID)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	fflush(stdout);
}

/* The content of a file: two lives of one block never have the same. */
static int stamp(char *text, size_t size, const char *dir, const char *file)
{
	return snprintf(text, size, "%s/%s of its own life\n", dir, file);
}

static void count_reuse(ino_t inode)
{
	if (inode < BLOCKS && atomic_exchange(&used[inode], 1))
		atomic_fetch_add(&reused, 1);
}

/* Returns false if there is no room. */
static bool create(int dirfd, const char *dir, int number)
{
	char name[16], text[128];
	struct stat st;
	bool made = false;
	int fd, len;

	snprintf(name, sizeof(name), "f%d", number);
	len = stamp(text, sizeof(text), dir, name);
	fd = openat(dirfd, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
	if (fd >= 0) {
		made = write(fd, text, len) == len;
		if (made && !fstat(fd, &st))
			count_reuse(st.st_ino);
	}
	if (made)
		atomic_fetch_add(&created, 1);
	else if (errno == ENOSPC)
		atomic_fetch_add(&full, 1);
	else
		problem(&failed, "create %s/%s: %s\n", dir, name, strerror(errno));
	if (fd >= 0) {
		close(fd);
		if (!made)
			unlinkat(dirfd, name, 0);
	}
	return made;
}

/* In a place of this thread's own first, so that nobody sees half of it. */
static void produce(int topfd, int id, int round)
{
	char dir[64], here[128], there[128];
	int fd, i;

	snprintf(dir, sizeof(dir), "n%dt%dr%d", self, id, round);
	snprintf(here, sizeof(here), "own%dt%d/%s", self, id, dir);
	snprintf(there, sizeof(there), "to%d/%s", goes_to(round), dir);
	if (mkdirat(topfd, here, 0755)) {
		if (errno == ENOSPC)
			atomic_fetch_add(&full, 1);
		else
			problem(&failed, "mkdir %s: %s\n", here, strerror(errno));
		return;
	}
	fd = openat(topfd, here, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		problem(&failed, "open %s: %s\n", here, strerror(errno));
		return;
	}
	for (i = 0; i < batch && create(fd, dir, i); i++)
		;
	close(fd);
	/* needs no block where the directory's own one has room for the name */
	while (renameat(topfd, here, topfd, there)) {
		if (errno != ENOSPC) {
			problem(&failed, "rename %s: %s\n", there, strerror(errno));
			return;
		}
		usleep(100000);
	}
}

static void check(int dirfd, const char *dir, const char *name)
{
	char want[128], text[128];
	int fd, len, got;

	len = stamp(want, sizeof(want), dir, name);
	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		problem(&wrong, "open %s/%s: %s\n", dir, name, strerror(errno));
		return;
	}
	got = read(fd, text, sizeof(text) - 1);
	if (got < 0)
		problem(&wrong, "read %s/%s: %s\n", dir, name, strerror(errno));
	else if (got != len || memcmp(text, want, len))
		problem(&wrong, "%s/%s contains %.*s\n", dir, name, got, text);
	close(fd);
	atomic_fetch_add(&checked, 1);
}

static void consume(int topfd, const char *path, const char *dir, bool keep)
{
	int fd = openat(topfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *entry;
	DIR *stream;

	stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		problem(&wrong, "open %s: %s\n", path, strerror(errno));
		return;
	}
	while ((entry = readdir(stream))) {
		if (entry->d_name[0] == '.')
			continue;
		check(fd, dir, entry->d_name);
		if (keep)
			continue;
		if (unlinkat(fd, entry->d_name, 0))
			problem(&failed, "unlink %s/%s: %s\n", path, entry->d_name, strerror(errno));
		else
			atomic_fetch_add(&unlinked, 1);
	}
	closedir(stream);
	if (!keep && unlinkat(topfd, path, AT_REMOVEDIR))
		problem(&failed, "rmdir %s: %s\n", path, strerror(errno));
}

/* How many directories wait for a node; with `names`, the first of them. */
static int waiting(int topfd, int node, char names[][64], int max)
{
	struct dirent *entry;
	char path[32];
	int count = 0, fd;
	DIR *stream;

	snprintf(path, sizeof(path), "to%d", node);
	fd = openat(topfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		problem(&failed, "open %s: %s\n", path, strerror(errno));
		return 0;
	}
	while ((entry = readdir(stream))) {
		if (entry->d_name[0] == '.')
			continue;
		if (names && count < max)
			snprintf(names[count], sizeof(names[count]), "%.63s", entry->d_name);
		count++;
	}
	closedir(stream);
	return count;
}

static int consume_waiting(int topfd, int id)
{
	char names[BACKLOG][64], from[128], to[128];
	int i, count, done = 0;

	count = waiting(topfd, self, names, BACKLOG);
	for (i = 0; i < count && i < BACKLOG; i++) {
		snprintf(from, sizeof(from), "to%d/%.63s", self, names[i]);
		snprintf(to, sizeof(to), "own%dt%d/%.63s", self, id, names[i]);
		if (renameat(topfd, from, topfd, to)) {
			/* ENOENT: the other thread was faster */
			if (errno != ENOENT && errno != ENOSPC)
				problem(&failed, "rename %s: %s\n", from, strerror(errno));
			continue;
		}
		consume(topfd, to, names[i], false);
		done++;
	}
	return done;
}

static void drop_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "2", 1) != 1)
		problem(&failed, "drop_caches: %s\n", strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	int topfd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int round = 0, done;

	if (topfd < 0) {
		problem(&failed, "open %s: %s\n", top, strerror(errno));
		return NULL;
	}
	while (now() < deadline) {
		if (waiting(topfd, goes_to(round), NULL, 0) < BACKLOG)
			produce(topfd, worker->id, round);
		round++;
		done = consume_waiting(topfd, worker->id);
		if (!worker->id && round % DROP_ROUND == 0)
			drop_caches();
		if (!done)
			usleep(20000);
	}
	close(topfd);
	return NULL;
}

static void finish(bool keep)
{
	int topfd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char names[4 * BACKLOG][64], path[128];
	int i, count;

	if (topfd < 0) {
		problem(&failed, "open %s: %s\n", top, strerror(errno));
		return;
	}
	count = waiting(topfd, self, names, 4 * BACKLOG);
	for (i = 0; i < count && i < 4 * BACKLOG; i++) {
		snprintf(path, sizeof(path), "to%d/%.63s", self, names[i]);
		consume(topfd, path, names[i], keep);
	}
	close(topfd);
}

int main(int argc, char **argv)
{
	struct worker workers[THREADS];
	int i;

	if (argc != 7) {
		fprintf(stderr, "usage: churn work|look|drain DIR SELF PEER SECONDS BATCH\n");
		return 2;
	}
	top = argv[2];
	self = atoi(argv[3]);
	peer = atoi(argv[4]);
	deadline = now() + atoi(argv[5]);
	batch = atoi(argv[6]);

	if (!strcmp(argv[1], "work")) {
		for (i = 0; i < THREADS; i++) {
			workers[i].id = i;
			if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
				return 2;
		}
		for (i = 0; i < THREADS; i++)
			pthread_join(workers[i].thread, NULL);
	} else {
		finish(!strcmp(argv[1], "look"));
	}
	printf("created %lu\nreused %lu\nchecked %lu\nunlinked %lu\nfull %lu\nwrong %lu\nfailed %lu\n",
	       created, reused, checked, unlinked, full, wrong, failed);
	return wrong || failed;
}
