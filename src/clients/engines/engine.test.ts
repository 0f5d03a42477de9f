import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Facts, type Log, silentLog } from '#base/log.ts';
import { type ContainerEngine, engineKindOf } from '#core/containers.ts';
import { loadBusybox } from '#testbed/busybox.ts';
import { startDockerd } from '#testbed/dockerd.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { lacks } from '#testbed/lacks.ts';
import { startPodman } from '#testbed/podman.ts';
import { type ScriptedEngine, startScriptedEngine } from '#testbed/scripted-engine.ts';
import { startTrivialPlugin, type TrivialPlugin } from '#testbed/trivial-plugin.ts';
import { createContainerEngine } from './engine.ts';

const end = new AbortController();
const scope = { signal: end.signal, log: silentLog() };
afterAll(() => end.abort());

const kinds = [
  { kind: 'docker', start: startDockerd },
  { kind: 'podman', start: startPodman },
] as const;

/** Keeps lines of level info and above. */
function createRecordingLog(): Log & { readonly lines: string[] } {
  const lines: string[] = [];
  const keep = (message: string, facts?: Facts): void => void lines.push(`${message}: ${String(facts?.['engine'])}`);
  const log = { lines, debug: () => undefined, info: keep, warn: keep, error: keep, with: () => log };
  return log;
}

describe.each(kinds)('a real engine: $kind', ({ kind, start }) => {
  describe.skipIf(lacks('root', 'mount', kind, 'busybox'))('and its containers', () => {
    let testEngine: TestEngine;
    let engine: ContainerEngine;
    let image: string;
    let plugin: TrivialPlugin;
    const log = createRecordingLog();
    const cleanups = new AsyncDisposableStack();

    beforeAll(async () => {
      testEngine = cleanups.use(await start(end.signal));
      plugin = cleanups.use(await startTrivialPlugin(testEngine, 'stowage'));
      cleanups.use(await startTrivialPlugin(testEngine, 'stowage-local'));
      image = await loadBusybox(testEngine, end.signal);
      engine = cleanups.use(
        createContainerEngine({ name: kind, kind, socket: testEngine.socket, clock: systemClock(), log }),
      );
      for (const [name, driver] of Object.entries({ photos: 'stowage', films: 'stowage-local' }))
        await testEngine.run('volume', 'create', '--driver', driver, name);
    });
    afterAll(() => cleanups.disposeAsync());

    const listedStates = async (): Promise<readonly string[]> =>
      (await engine.containers(scope)).map(({ name, running }) => `${name} ${running ? 'runs' : 'ended'}`).sort();
    const containerOptions = ['--stop-timeout', '0', '--network', 'none'];
    const create = (name: string, volume: string): Promise<string> =>
      testEngine.run(
        'create',
        ...containerOptions,
        '--name',
        name,
        '--volume',
        `${volume}:/data`,
        image,
        'sleep',
        '1000',
      );

    test('are listed from their creation to their removal', async () => {
      const id = await create('one', 'photos');
      expect(await engine.containers(scope)).toEqual([
        { id, name: 'one', running: true, live: false, volumes: [{ plugin: 'stowage', name: 'photos' }] },
      ]);
      await testEngine.run('start', 'one');
      expect(await listedStates()).toEqual(['one runs']);
      await testEngine.run('pause', 'one');
      expect(await listedStates()).toEqual(['one runs']);
      await testEngine.run('unpause', 'one');
      await testEngine.run('stop', 'one');
      expect(await listedStates()).toEqual(['one ended']);
      await testEngine.run('rm', 'one');
      expect(await listedStates()).toEqual([]);
    });

    test('are listed with each Stowage volume once, and without other volumes', async () => {
      await using _ = { [Symbol.asyncDispose]: async () => void (await testEngine.run('rm', 'some', 'none')) };
      await testEngine.run('volume', 'create', 'plain');
      const volumes = ['photos:/a', 'photos:/b', 'films:/c', 'plain:/d', '/etc:/e'].flatMap((one) => ['--volume', one]);
      await testEngine.run('create', ...containerOptions, '--name', 'some', ...volumes, image, 'true');
      await testEngine.run('create', ...containerOptions, '--name', 'none', '--volume', 'plain:/d', image, 'true');
      const found = await engine.containers(scope);
      expect(found.map(({ name }) => name)).toEqual(['some']);
      expect(new Set(found[0]?.volumes)).toEqual(
        new Set([
          { plugin: 'stowage', name: 'photos' },
          { plugin: 'stowage-local', name: 'films' },
        ]),
      );
      expect(found[0]?.volumes).toHaveLength(2);
    });

    test('trigger the callback when they change, but not for processes started inside them', async () => {
      let count = 0;
      await using _ = engine.follow(() => {
        count++;
      });
      const countBecomes = (expected: number) => expect.poll(() => count).toBe(expected);
      await countBecomes(1);
      await create('two', 'photos');
      await countBecomes(2);
      await testEngine.run('start', 'two');
      await countBecomes(3);
      await testEngine.run('exec', 'two', 'true');
      await testEngine.run('rename', 'two', 'three');
      // Events arrive in order, so an event for the exec would have arrived before.
      await countBecomes(4);
      await testEngine.run('stop', 'three');
      await expect.poll(() => count).toBeGreaterThan(4);
      await testEngine.run('rm', 'three');
      await expect.poll(() => count).toBeGreaterThan(5);
    });

    test.each(['stop', 'kill'] as const)('are listed again after the engine’s %s and start', async (ending) => {
      let count = 0;
      log.lines.length = 0;
      const following = engine.follow(() => {
        count++;
      });
      await expect.poll(() => count).toBe(1);
      await testEngine[ending]();
      await expect.poll(() => log.lines).toEqual([`lost the connection to a container engine: ${kind}`]);
      await expect(engine.containers(scope)).rejects.toMatchObject({
        code: 'unavailable',
        reason: 'engine-unreachable',
        message: expect.stringMatching(`^container engine ${kind} does not answer \\(GET /.*: connect E`),
      });
      expect(count).toBe(1);
      await testEngine.start();
      await expect.poll(() => count).toBe(2);
      expect(log.lines).toEqual([
        `lost the connection to a container engine: ${kind}`,
        `a container engine answers again: ${kind}`,
      ]);
      await create('after', 'films');
      await expect.poll(() => count).toBe(3);
      await following[Symbol.asyncDispose]();
      await testEngine.run('rm', 'after');
      expect(await listedStates()).toEqual([]);
      expect(count).toBe(3);
    });

    test('mount with ids that identify the engine', async () => {
      const callsBefore = plugin.calls.length;
      for (const name of ['first', 'second'])
        await testEngine.run(
          'run',
          '--detach',
          ...containerOptions,
          '--name',
          name,
          '--volume',
          'photos:/data',
          image,
          'sleep',
          '1000',
        );
      await testEngine.run('rm', '--force', 'first');
      await testEngine.run('rm', '--force', 'second');
      const pluginCalls = plugin.calls
        .slice(callsBefore)
        .filter(({ method }) => method === 'Mount' || method === 'Unmount');
      expect(new Set(pluginCalls.map(engineKindOf))).toEqual(new Set([kind]));
      // Podman counts itself: the first container mounts, the last one unmounts.
      expect(pluginCalls.map(({ method }) => method)).toEqual(
        kind === 'podman' ? ['Mount', 'Unmount'] : ['Mount', 'Mount', 'Unmount', 'Unmount'],
      );
      expect(new Set(pluginCalls.map(({ id }) => id)).size).toBe(kind === 'podman' ? 1 : 2);
    });

    test('are not reported as user-remapped', async () => {
      expect(await engine.remapsUsers(scope)).toBe(false);
    });
  });
});

describe.skipIf(lacks('root', 'mount', 'docker'))('a real engine that remaps users', () => {
  test('is detected', async () => {
    await using real = await startDockerd(end.signal, { args: ['--userns-remap', 'default'] });
    using engine = createContainerEngine({
      name: 'docker',
      kind: 'docker',
      socket: real.socket,
      clock: systemClock(),
      log: silentLog(),
    });
    expect(await engine.remapsUsers(scope)).toBe(true);
  });
});

describe('responses of engines', () => {
  let scripted: ScriptedEngine;
  let engine: ContainerEngine & Disposable;
  let answer: unknown;
  let status = 200;

  beforeAll(async () => {
    scripted = await startScriptedEngine((_path, _request, response) => {
      response.writeHead(status).end(JSON.stringify(answer));
    });
    const { socket } = scripted;
    engine = createContainerEngine({ name: 'it', kind: 'docker', socket, clock: systemClock(), log: silentLog() });
  });
  afterAll(async () => {
    engine[Symbol.dispose]();
    await scripted[Symbol.asyncDispose]();
  });

  const container = (State: string, Driver = 'stowage'): object => ({
    Id: `id-${State}`,
    Names: [`/${State}`],
    State,
    Mounts: [{ Type: 'volume', Name: 'photos', Driver, Source: '/x', Destination: '/data' }],
  });

  test.each([
    ['created', true, false],
    ['configured', true, false],
    ['initialized', true, false],
    ['running', true, true],
    ['restarting', true, true],
    ['paused', true, true],
    ['stopping', true, true],
    ['something new', true, true],
    ['exited', false, false],
    ['stopped', false, false],
  ])('in state %s a container may be running: %s, has its volumes mounted: %s', async (state, running, live) => {
    answer = [container(state)];
    expect(await engine.containers(scope)).toMatchObject([{ name: state, running, live }]);
  });

  test('a container that is being removed is not listed', async () => {
    answer = [container('removing'), container('dead'), container('running')];
    expect(await engine.containers(scope)).toMatchObject([{ name: 'running' }]);
  });

  test.each([
    ['stowage', 'stowage'],
    ['stowage-local', 'stowage-local'],
    ['stowage:latest', 'stowage'],
    ['registry.example:5000/team/stowage:1.2', 'stowage'],
    ['docker.io/team/stowage-local@sha256:0123', 'stowage-local'],
    ['stowage-other', undefined],
    ['stowage/other:1', undefined],
    ['nfsvol', undefined],
    ['', undefined],
  ])(
    'a volume of the driver “%s” belongs to the Stowage plugin %s; with undefined, the plugin may have an alias',
    async (driver, plugin) => {
      answer = [container('running', driver)];
      const found = (await engine.containers(scope)).flatMap(({ volumes }) => volumes);
      expect(found).toEqual([{ plugin, name: 'photos' }]);
    },
  );

  test('a volume of the engine’s own driver is not ours', async () => {
    answer = [container('running', 'local')];
    expect(await engine.containers(scope)).toEqual([]);
  });

  test.each([
    [['name=seccomp,profile=default'], false],
    [['name=seccomp,profile=default', 'name=userns'], true],
    [['name=rootless'], true],
    [['name=usernsish'], false],
    [null, false],
  ])('security options %j mean that users are remapped: %s', async (SecurityOptions, remaps) => {
    answer = { SecurityOptions };
    expect(await engine.remapsUsers(scope)).toBe(remaps);
  });

  test.each([
    [
      500,
      { message: 'out of luck' },
      'unavailable',
      'engine-refused',
      'container engine it refused the request (GET /containers/json: out of luck)',
    ],
    [
      403,
      { message: 'not you' },
      'denied',
      'engine-refused',
      'container engine it refused the request (GET /containers/json: not you)',
    ],
    [
      ...([200, {}, 'unavailable', 'engine-answer'] as const),
      'container engine it sent an answer that Stowage does not understand (GET /containers/json: the answer is not a list)',
    ],
  ] as const)('an error %s %j becomes %s', async (httpStatus, body, code, reason, message) => {
    answer = body;
    status = httpStatus;
    await using _ = {
      [Symbol.asyncDispose]: async () => {
        status = 200;
      },
    };
    await expect(engine.containers(scope)).rejects.toMatchObject({ code, reason, message });
  });

  test('user remapping is cached while the engine does not answer, and is queried again after its restart', async () => {
    let options: readonly string[] = ['name=userns'];
    let isBusy = false;
    await using scriptedEngine = await startScriptedEngine((path, _request, response) => {
      if (path === '/events') response.flushHeaders();
      else if (!isBusy) response.end(JSON.stringify({ SecurityOptions: options }));
    });
    using freshEngine = createContainerEngine({
      name: 'it',
      kind: 'podman',
      socket: scriptedEngine.socket,
      clock: systemClock(),
      log: silentLog(),
    });
    await using _ = freshEngine.follow(() => undefined);
    const infoRequestCount = (): number => scriptedEngine.requests.filter((one) => one.endsWith('/info')).length;
    await expect
      .poll(async () => {
        const requestsBefore = infoRequestCount();
        return (await freshEngine.remapsUsers(scope)) && requestsBefore === infoRequestCount();
      })
      .toBe(true);
    isBusy = true;
    expect(await freshEngine.remapsUsers(scope)).toBe(true);
    [isBusy, options] = [false, []];
    await scriptedEngine.stop();
    await scriptedEngine.start();
    await expect.poll(() => freshEngine.remapsUsers(scope)).toBe(false);
  });

  test('a cancelled caller gets the reason of its signal', async () => {
    const caller = new AbortController();
    caller.abort();
    await expect(engine.containers({ ...scope, signal: caller.signal })).rejects.toMatchObject({ code: 'canceled' });
  });
});
