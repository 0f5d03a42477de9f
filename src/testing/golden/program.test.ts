import { beforeAll, describe, expect, test } from 'vitest';
import { defaultFolders } from '#base/folders.ts';
import type { StowageCommand } from '#cli/command.ts';
import { exitCodes } from '#cli/exit-codes.ts';
import { createProgram } from '#cli/program.ts';
import { pluginNames } from '#core/containers.ts';
import { errorCodes } from '#core/error-codes.ts';
import { configurationNames } from '../../../scripts/docs/configuration.ts';
import { failuresIn } from '../../../scripts/docs/errors.ts';
import { askController, askServer, type LiveAnswers } from '../../../scripts/docs/live.ts';
import { metricsIn } from '../../../scripts/docs/metrics.ts';
import { programSources } from '../../../scripts/docs/sources.ts';
import { literal, nameOf, partOf, partsOf, propertiesOf, type Source, walk } from '../../../scripts/docs/syntax.ts';
import { flat } from './flatten-schema.ts';
import { expectGolden } from './golden.ts';
import { settingsIn } from './settings-keys.ts';

let sources: readonly Source[];
let told: LiveAnswers;
beforeAll(async () => {
  [sources, told] = await Promise.all([programSources(), askServer()]);
});

test('error codes keep their HTTP, gRPC and exit status, and whether they are retried', () => {
  expectGolden(
    'error-codes',
    Object.entries(errorCodes).map(
      ([code, { http, grpc, exit, retry }]) =>
        `${code}: HTTP ${http}, gRPC ${grpc}, exit ${exit}, ${retry ? 'retry' : 'no retry'}`,
    ),
  );
});

test('every error keeps its reason, and the code of that reason', () => {
  expectGolden(
    'error-reasons',
    failuresIn(sources).map(({ reason, code }) => `${reason}: ${code}`),
  );
});

describe('the command line', () => {
  const noAct = () => async () => undefined;
  const machine = createProgram({ version: '', program: 'stowage' }, noAct);
  const cluster = createProgram({ version: '', program: 'kubectl stowage', cluster: () => Promise.reject() }, noAct);

  test.each([
    ['stowage', machine],
    ['kubectl-stowage', cluster],
  ])('%s keeps its commands, aliases, arguments and options', (name, program) => {
    expectGolden(`commands-of-${name}`, commandLines(program));
  });

  test('each exit status keeps its meaning', () => {
    expectGolden(
      'exit-statuses',
      exitCodes().map(({ exit, codes }) => [`${exit}:`, codes.toSorted().join(', ')].join(' ').trim()),
    );
  });
});

/** Includes hidden commands, because installed completion scripts call them. */
function commandLines(command: StowageCommand, path = ''): readonly string[] {
  const own = [
    path,
    ...command.aliases().map((alias) => `${path} alias ${alias}`),
    ...command.registeredArguments.map(
      ({ required, variadic, argChoices, defaultValue }, index) =>
        `${path} argument ${index + 1}:${required ? ' required' : ' optional'}${variadic ? ' repeated' : ''}${choices(argChoices)}${byDefault(defaultValue)}`,
    ),
    ...command.options.map((option) => {
      const takes = option.required ? ' value' : option.optional ? ' optional value' : '';
      const also = option.short === undefined ? '' : ` (${option.short})`;
      const must = option.mandatory ? ' mandatory' : '';
      return `${path} option ${option.long}${also}${takes}${must}${choices(option.argChoices)}${byDefault(option.defaultValue)}`;
    }),
  ];
  const children = (command.commands as StowageCommand[]).flatMap((child) =>
    commandLines(child, path === '' ? child.name() : `${path} ${child.name()}`),
  );
  return [...own.map((line) => line.trim()).filter((line) => line !== ''), ...children];
}

const choices = (words: readonly string[] | undefined): string =>
  words === undefined ? '' : ` {${words.toSorted().join('|')}}`;
const byDefault = (value: unknown): string => (value === undefined ? '' : ` default ${JSON.stringify(value)}`);

test('the REST API keeps its routes, parameters, headers, answers and the fields of all objects', () => {
  const { info: _info, ...document } = told.openApi as Record<string, unknown>;
  const lines = flat(document);
  expect(lines.length).toBeGreaterThan(1000);
  expectGolden('rest-api', lines);
});

describe('metrics', () => {
  const lines = (text: string): readonly string[] =>
    metricsIn(text)
      .filter(({ name }) => name.startsWith('stowage_'))
      .map(({ name, type, labels }) => `${name} ${type} {${labels.toSorted().join(', ')}}`);

  test('of a server keep their names, types and labels', () => {
    expectGolden('metrics-of-server', lines(told.metrics));
  });

  test('of the controller keep their names, types and labels', async () => {
    expectGolden('metrics-of-controller', lines(await askController()));
  });
});

test('the configuration keeps its keys, options of stores and environment variables', () => {
  expectGolden('configuration', configurationNames(sources));
});

test('the folders stay where they are', () => {
  const places = (who: string, root: boolean, env: Readonly<Record<string, string>> = {}): readonly string[] =>
    Object.entries(defaultFolders({ root, home: '~', env })).map(([what, path]) => `${who}: ${what} ${path}`);
  const xdg = { XDG_STATE_HOME: '/S', XDG_RUNTIME_DIR: '/R', XDG_CONFIG_HOME: '/C' };
  expectGolden('folders', [...places('root', true), ...places('user', false), ...places('user with XDG', false, xdg)]);
});

test('the state database keeps the keys of its settings', () => {
  expectGolden('settings', settingsIn(sources));
});

test('the checks of a store keep the names of their steps', () => {
  const those = sources.filter(({ path }) => /^src\/(stores|core|app)\//.test(path));
  const parts = those.flatMap(({ program }) => [...walk(program)].map(([part]) => part));
  const called = parts.filter((part) => part.type === 'CallExpression' && isStep(nameOf(partOf(part['callee']))));
  const steps = [
    ...called.map((call) => literal(partsOf(call['arguments'])[0])),
    ...parts
      .filter(({ type }) => type === 'ObjectExpression')
      .map((object) => literal(propertiesOf(object).get('step'))),
  ];
  expectGolden(
    'store-check-steps',
    steps.flatMap((step) => step || []),
  );
});

const isStep = (name: string | undefined): boolean => name === 'step' || name === 'runStep' || name === 'onStep';

test('operations and events keep their kinds', () => {
  const texts = sources.flatMap(({ program }) => [...walk(program)].flatMap(([part]) => literal(part) ?? []));
  expectGolden(
    'operation-and-event-kinds',
    texts.filter((text) =>
      /^(?:volume|store|mount|mounts|operation|keeper|trash|token)\.(?!mjs$|json$|nfs$)[a-z]+$/.test(text),
    ),
  );
});

test('container engines keep the plugin names that volumes were created with', () => {
  expectGolden('docker-plugins', pluginNames);
});

test('keepers keep the reasons that they give to agents of other versions', () => {
  const those = sources.filter(({ path }) => path.startsWith('src/keeper/'));
  const parts = those.flatMap(({ program }) => [...walk(program)].map(([part]) => part));
  const thrown = parts.filter(
    (part) => part.type === 'NewExpression' && nameOf(partOf(part['callee'])) === 'KeeperError',
  );
  const reasons = [
    ...thrown.map((part) => literal(partsOf(part['arguments'])[0])),
    ...parts
      .filter(({ type }) => type === 'ObjectExpression')
      .map((object) => literal(propertiesOf(object).get('reason'))),
  ];
  expectGolden(
    'keeper-reasons',
    reasons.flatMap((reason) => reason ?? []),
  );
});
