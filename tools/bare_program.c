/* The one program of the image without a shell: bare greet | say WORD… | copy | exit CODE | wait. Static. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int say(int count, char **words)
{
    for (int i = 0; i < count; i++)
        printf("%s%s", i ? " " : "", words[i]);
    printf("\n");
    return 0;
}

static int copy(void)
{
    char buffer[65536];
    size_t size;

    while ((size = fread(buffer, 1, sizeof buffer, stdin)) > 0)
        if (fwrite(buffer, 1, size, stdout) != size)
            return 1;
    return fflush(stdout) ? 1 : 0;
}

int main(int count, char **words)
{
    const char *verb = count > 1 ? words[1] : "";

    if (!strcmp(verb, "greet"))
        return puts("Hello from Docker!\nThis message shows that your installation appears to be working correctly.") < 0;
    if (!strcmp(verb, "say"))
        return say(count - 2, words + 2);
    if (!strcmp(verb, "copy"))
        return copy();
    if (!strcmp(verb, "exit") && count > 2)
        return atoi(words[2]);
    if (!strcmp(verb, "wait"))
        return pause();
    fprintf(stderr, "bare: greet | say WORD... | copy | exit CODE | wait\n");
    return 2;
}
