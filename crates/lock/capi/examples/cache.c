/*
 * Keeps a lock as long as no other client wants it, and the protected content in memory. That is
 * a cache that is coherent in the whole cluster. Two sessions of this program stand for two
 * nodes.
 *
 *     cc cache.c -llockify -o cache
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockify.h>

struct cache {
	lockify_t *session;
	lockify_space_t *space;
	lockify_lock_t *lock;
	const char *name;
	char content[32]; /* the value block of the lock carries it */
};

static void check(const char *what, int code)
{
	if (code) {
		fprintf(stderr, "%s: %s\n", what, lockify_message());
		exit(1);
	}
}

/* Somebody wants to write, or to read what was written: the content goes with the lock. */
static void give_way(int wanted, void *arg)
{
	struct cache *cache = arg;
	struct lockify_request nothing = LOCKIFY_REQUEST_INIT;

	(void)wanted;
	nothing.mode = LOCKIFY_NL;
	nothing.flags = LOCKIFY_VALBLK;
	nothing.lvb = cache->content;
	check("give way", lockify_convert(cache->lock, &nothing));
}

/* A lock is gone, with it the right to use the content. */
static void lost(const struct lockify_lost *lock, void *arg)
{
	(void)arg;
	fprintf(stderr, "%.*s: %s\n", (int)lock->name_len, (const char *)lock->name, lock->why);
	exit(1);
}

static void start(struct cache *cache, const char *name)
{
	struct lockify_request request = LOCKIFY_REQUEST_INIT;

	memset(cache, 0, sizeof(*cache));
	cache->name = name;
	check("connect", lockify_connect(NULL, &cache->session));
	check("open", lockify_open(cache->session, "default", &cache->space));
	check("on_lost", lockify_on_lost(cache->space, lost, NULL));
	request.mode = LOCKIFY_NL;
	request.on_block = give_way;
	request.arg = cache;
	check("lock", lockify_lock(cache->space, "a", 1, &request, &cache->lock));
}

static void hold(struct cache *cache, int mode)
{
	struct lockify_request request = LOCKIFY_REQUEST_INIT;

	request.mode = mode;
	request.flags = LOCKIFY_VALBLK;
	request.lvb = cache->content;
	request.timeout = 30000;
	check("convert", lockify_convert(cache->lock, &request));
	/* Nobody has written it yet: then it stays as it is. */
	if (lockify_lvb(cache->lock, cache->content, sizeof(cache->content)) == LOCKIFY_OK &&
	    lockify_flags(cache->lock) & LOCKIFY_VALNOTVALID)
		fprintf(stderr, "its last writer died: read the content from where it is kept\n");
}

int main(void)
{
	struct cache one, two;

	start(&one, "one");
	start(&two, "two");
	hold(&one, LOCKIFY_EX);
	strcpy(one.content, "written by one");
	hold(&two, LOCKIFY_PR);
	printf("two reads: %s\n", two.content);
	hold(&two, LOCKIFY_EX);
	strcpy(two.content, "written by two");
	hold(&one, LOCKIFY_PR);
	printf("one reads: %s\n", one.content);
	check("unlock", lockify_unlock(one.lock, NULL, 0));
	check("unlock", lockify_unlock(two.lock, NULL, 0));
	lockify_close(one.space);
	lockify_close(two.space);
	lockify_disconnect(one.session);
	lockify_disconnect(two.session);
	return 0;
}
