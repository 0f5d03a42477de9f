/** The last stage of a Dockerfile, limited to what the test bed can build without a registry. */
export interface Stage {
  /** The Debian packages of its `apt-get install`. */
  readonly packages: readonly string[];
  /** The steps in order. */
  readonly steps: readonly Step[];
  /** The `config` of the image, as in the OCI image specification. */
  readonly config: ImageConfig;
}

export type Step =
  | { readonly kind: 'run'; readonly command: string }
  | { readonly kind: 'copy'; readonly from: string; readonly to: string };

export interface ImageConfig {
  readonly Env: readonly string[];
  readonly User: string;
  readonly Entrypoint: readonly string[];
  readonly Cmd: readonly string[];
  readonly Volumes: Readonly<Record<string, object>>;
  readonly ExposedPorts: Readonly<Record<string, object>>;
  readonly StopSignal: string;
  readonly Healthcheck?: {
    readonly Test: readonly string[];
    readonly Interval: number;
    readonly Timeout: number;
    readonly StartPeriod: number;
  };
}

const path = 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
const nanoseconds = (text: string | undefined): number => Number.parseInt(text ?? '0', 10) * 1e9;

/**
 * Throws for an unknown instruction: the image of the test bed must not differ silently from the image that users
 * build.
 */
export function lastStage(text: string): Stage {
  const instructions = text
    .replaceAll(/^\s*#.*\n/gm, '')
    .replaceAll(/\\\n/g, ' ')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  const stage = instructions.slice(instructions.findLastIndex((line) => line.startsWith('FROM ')) + 1);
  const parsed = stage.map((line) => {
    const [, word = '', rest = ''] = /^([A-Z]+)\s+(.*)$/.exec(line) ?? [];
    return { word, rest };
  });
  const unknown = parsed.find(({ word }) => !knownInstructions.has(word));
  if (unknown !== undefined)
    throw new Error(`the test bed does not know the Dockerfile instruction ${unknown.word || '?'}`);
  const argumentsOf = (word: string): readonly string[] =>
    parsed.filter((instruction) => instruction.word === word).map((instruction) => instruction.rest);
  const lastArgumentOf = (word: string): string => argumentsOf(word).at(-1) ?? '';
  const namesIn = (word: string, suffix = ''): Record<string, object> =>
    Object.fromEntries(argumentsOf(word).flatMap((rest) => rest.split(/\s+/).map((name) => [`${name}${suffix}`, {}])));
  return {
    packages: argumentsOf('RUN').flatMap(aptPackages),
    steps: parsed.flatMap(({ word, rest }) => stepsOf(word, rest)),
    config: {
      Env: [path, ...argumentsOf('ENV').flatMap((rest) => rest.split(/\s+/))],
      User: lastArgumentOf('USER'),
      Entrypoint: JSON.parse(lastArgumentOf('ENTRYPOINT')),
      Cmd: JSON.parse(lastArgumentOf('CMD')),
      Volumes: namesIn('VOLUME'),
      ExposedPorts: namesIn('EXPOSE', '/tcp'),
      StopSignal: lastArgumentOf('STOPSIGNAL'),
      ...healthcheckOf(lastArgumentOf('HEALTHCHECK')),
    },
  };
}

const knownInstructions = new Set([
  'RUN',
  'COPY',
  'ENV',
  'USER',
  'VOLUME',
  'EXPOSE',
  'HEALTHCHECK',
  'STOPSIGNAL',
  'ENTRYPOINT',
  'CMD',
]);

function aptPackages(command: string): readonly string[] {
  const words = /\bapt-get install ([^&]*)/.exec(command)?.[1] ?? '';
  return words.split(/\s+/).filter((word) => word !== '' && !word.startsWith('-'));
}

function stepsOf(word: string, rest: string): readonly Step[] {
  if (word === 'RUN') return rest.startsWith('apt-get ') ? [] : [{ kind: 'run', command: rest }];
  if (word !== 'COPY') return [];
  const [, from, to] = /^--from=build \/build\/(\S+) (\S+)$/.exec(rest) ?? [];
  if (from === undefined || to === undefined) throw new Error(`the test bed does not know how to COPY ${rest}`);
  return [{ kind: 'copy', from, to }];
}

function healthcheckOf(rest: string): Pick<ImageConfig, 'Healthcheck'> {
  const test = /CMD (\[.*\])$/.exec(rest)?.[1];
  if (test === undefined) return {};
  const option = (name: string): number => nanoseconds(new RegExp(`--${name}=(\\d+)s`).exec(rest)?.[1]);
  const Test = ['CMD', ...(JSON.parse(test) as readonly string[])];
  return {
    Healthcheck: {
      Test,
      Interval: option('interval'),
      Timeout: option('timeout'),
      StartPeriod: option('start-period'),
    },
  };
}
