import { execFile } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { cacheKey } from './mutants/cache.ts';
import { graphOf, relatedTests } from './mutants/graph.ts';
import { judge, nextBatch, type TestBench } from './mutants/judge.ts';
import { applyMutant, chooseMutants, type Mutant, mutantOf } from './mutants/mutant.ts';
import { changesOf } from './mutants/operators.ts';
import { reportLines, verdictLine } from './mutants/report.ts';
import type { Run } from './mutants/run.ts';

const repository = dirname(import.meta.dirname);

/** The text after each possible change. */
function changed(text: string): readonly string[] {
  return changesOf('src/a/a.ts', text).map(
    ({ offset, original, replacement }) => text.slice(0, offset) + replacement + text.slice(offset + original.length),
  );
}

describe('mutation operators', () => {
  test.each<readonly [text: string, ...results: readonly string[]]>([
    ['x = a === b;', 'x = a !== b;'],
    ['x = a !== b;', 'x = a === b;'],
    ['x = a < b;', 'x = a <= b;'],
    ['x = a >= b;', 'x = a > b;'],
    ['x = (a) /* < */ > (b);', 'x = (a) /* < */ >= (b);'],
    ['x = a - b;', 'x = a + b;'],
    ['x = a && b;', 'x = a || b;'],
    ['x = !a;', 'x = a;'],
    ['x = true;', 'x = false;'],
    ['x = 0x10;', 'x = 17;'],
    ["x = '😀' in a && b;", "x = '😀' in a || b;"],
    ['if (a) x = y;', 'if (!(a)) x = y;'],
    ['x = a ? y : z;', 'x = !(a) ? y : z;'],
    ['while (a) x = y;', 'while (!(a)) x = y;'],
    ['do x = y; while (a);', 'do x = y; while (!(a));'],
    ['f(a);', ';'],
    ['await f(a);', ';'],
    ['a?.f();', ';'],
    ['function f() { return a; }', 'function f() { return undefined; }'],
    ['x = () => a;', 'x = () => undefined;'],
    ['x = () => ({ a });', 'x = () => (undefined);'],
    ['x = a as 1 | 2 && (b satisfies true);', 'x = a as 1 | 2 || (b satisfies true);'],
  ])('%s', (text, ...results) => {
    expect(changed(text)).toEqual(results);
  });

  test('make each possible change once', () => {
    expect(changed('if (a === b) x = y;')).toEqual(['if (a !== b) x = y;']);
    expect(changed('if (!a) x = y;')).toEqual(['if (a) x = y;']);
    expect(changed('while (true) x = y;')).toEqual(['while (false) x = y;']);
  });

  test.each([
    `import { a } from './1.ts';`,
    'type A = true | 1;',
    'interface A { readonly b: 1 }',
    'const a: 1 | true = b;',
    'x = a satisfies never;',
    'function f() { return a satisfies never; }',
    `scope.log.info('done', { n: 1 });`,
    'log.warn(a === b);',
    'console.log(a + b);',
    `x = 'a' + b + c;`,
    `throw new StowageError('no', { n: a === b });`,
    'const e = new Error(a ? b : c);',
    `const e = { action: a ? 'x' : 'y' };`,
    'x = { 1: a };',
    'const f = () => undefined;',
    'class A extends B { constructor() { super(); } }',
  ])('leave code alone that is no behaviour: %s', (text) => {
    expect(changed(text)).toEqual([]);
  });
});

const many = {
  path: 'src/a/a.ts',
  text: Array.from({ length: 50 }, (_, n) => `export const x${n} = a === b;\n`).join(''),
};

describe('the choice of mutants', () => {
  test('depends on the seed and the sources only', () => {
    expect(chooseMutants([many], 1, 10)).toEqual(chooseMutants([many], 1, 10));
    expect(chooseMutants([many], 2, 10)).not.toEqual(chooseMutants([many], 1, 10));
    expect(chooseMutants([many], 1, 10).map(({ line }) => line)).toEqual([32, 1, 27, 50, 48, 14, 30, 36, 20, 49]);
  });

  test('contains no mutant twice', () => {
    const chosen = chooseMutants([many], 1, 100);
    expect(new Set(chosen.map(({ offset }) => offset)).size).toBe(50);
    expect(chosen.length).toBe(50);
  });
});

function lastReplaced(text: string, replacement: string): string {
  const at = text.lastIndexOf('return 1;');
  return text.slice(0, at) + replacement + text.slice(at + 'return 1;'.length);
}

describe('a mutant', () => {
  const text = 'one();\nif (a) {\n  return 1;\n}\nif (b) {\n  return 1;\n}\n';
  const mutants = changesOf('src/a/a.ts', `function f() {\n${text}}\n`).map((change) =>
    mutantOf({ path: 'src/a/a.ts', text: `function f() {\n${text}}\n` }, change),
  );
  const second = mutants.findLast((mutant) => mutant.replacement === '2');

  test('has the line and the text of its change', () => {
    expect(second).toMatchObject({ line: 7, column: 9, context: '  return 1;', contexts: 2, contextsBefore: 1 });
  });

  test('is found again in a file that was edited elsewhere', () => {
    const edited = `// First line\nfunction f() {\n${text}}\n`;
    expect(second && applyMutant(edited, second)).toBe(lastReplaced(edited, 'return 2;'));
  });

  test.each([
    ['its line changed', lastReplaced(text, 'return 3;')],
    ['it is unclear which of several equal lines it is', text.replace('one();', 'one();\n  return 1;')],
  ])('is gone if %s', (_, edited) => {
    expect(second && applyMutant(edited, second)).toBeUndefined();
  });
});

const graph = graphOf([
  { path: 'src/a/x.ts', text: '' },
  { path: 'src/a/y.ts', text: `import { x } from './x.ts';` },
  { path: 'src/a/x.test.ts', text: `import { y } from './y.ts';` },
  { path: 'src/a/y.test.ts', text: `import { y } from './y.ts';` },
  { path: 'src/b/near-and-large.test.ts', text: `import { x } from '#a/x.ts';\n// A long comment.` },
  { path: 'src/b/near.test.ts', text: `import { x } from '#a/x.ts';` },
  { path: 'src/b/far.test.ts', text: `import { y } from '#a/y.ts';` },
  { path: 'src/b/types.test.ts', text: `import type { X } from '#a/x.ts';` },
  { path: 'src/b/program.test.ts', text: `const main = join(import.meta.dirname, '..', 'c', 'main.ts');` },
  { path: 'src/c/main.ts', text: '' },
  { path: 'e2e/x.test.ts', text: `import { x } from '../src/a/x.ts';` },
]);

describe('the tests related to a file', () => {
  test('are the file of the same name, then files of the same folder, then the nearest and smallest', () => {
    expect(relatedTests(graph, 'src/a/x.ts')).toEqual([
      'src/a/x.test.ts',
      'src/a/y.test.ts',
      'src/b/near.test.ts',
      'src/b/near-and-large.test.ts',
      'src/b/far.test.ts',
    ]);
  });

  test('include a test that starts the file as a program', () => {
    expect(relatedTests(graph, 'src/c/main.ts')).toEqual(['src/b/program.test.ts']);
  });
});

const [mutant] = chooseMutants([{ path: 'src/a/x.ts', text: 'x = a === b;\n' }], 1, 1) as [Mutant];

const budget = { seconds: 45, atLeast: 1 };

describe('the key of a cached verdict', () => {
  const tests = ['src/a/x.test.ts'];
  const edited = (path: string) =>
    graphOf([...graph.files.values()].map((file) => (file.path === path ? { ...file, text: `${file.text}\n` } : file)));
  const key = cacheKey(graph, mutant, tests, budget);

  test('stays the same after an edit of a file that the tests do not load', () => {
    expect(cacheKey(edited('src/b/near.test.ts'), mutant, tests, budget)).toBe(key);
  });

  test.each(['src/a/x.test.ts', 'src/a/y.ts', 'src/a/x.ts'])('changes with %s', (path) => {
    expect(cacheKey(edited(path), mutant, tests, budget)).not.toBe(key);
  });

  test('changes with the budget, the tests and the mutant', () => {
    expect(cacheKey(graph, mutant, tests, { ...budget, seconds: 46 })).not.toBe(key);
    expect(cacheKey(graph, mutant, [...tests, 'src/a/y.test.ts'], budget)).not.toBe(key);
    expect(cacheKey(graph, { ...mutant, replacement: '<' }, tests, budget)).not.toBe(key);
  });
});

describe('the verdict', () => {
  const original = 'x = a === b;\n';
  const tests = ['1.test.ts', '2.test.ts', '3.test.ts', '4.test.ts'];
  const passing: Run = { events: [], status: 'passed', leftMounts: [], seconds: 1 };
  const failing = (file: string): Run => ({
    ...passing,
    status: 'failed',
    events: [{ kind: 'failed', file, test: 'a title' }],
  });

  /** `answer` defines the result of a run of files, with and without the mutant. */
  async function verdict(answer: (files: readonly string[], isMutated: boolean) => Run, original_ = original) {
    let text = original;
    const runs: string[] = [];
    const bench: TestBench = {
      tests,
      budget,
      durations: new Map(),
      unreliable: new Map(),
      reliable: new Set(),
      write: async (written) => {
        text = written;
      },
      run: async (files) => {
        const isMutated = text !== original;
        runs.push(`${files.map((file) => file[0]).join('')}${isMutated ? '' : ' without'}`);
        return answer(files, isMutated);
      },
      clean: async () => [],
    };
    const { status, by } = await judge(mutant, original_, bench);
    return { status, by, runs, unreliable: [...bench.unreliable.keys()], text };
  }

  test('is survived when all tests pass', async () => {
    expect(await verdict(() => passing)).toMatchObject({ status: 'survived', runs: ['123', '4'], text: original });
  });

  test('is killed by a test that fails with the mutant and passes without it', async () => {
    const found = await verdict((files, isMutated) =>
      isMutated && files.includes('4.test.ts') ? failing('4.test.ts') : passing,
    );
    expect(found).toMatchObject({ status: 'killed', by: '4.test.ts', runs: ['123', '4', '4 without'] });
  });

  test('ignores a test that also fails without the mutant, and runs the others', async () => {
    const found = await verdict((files) => (files.includes('1.test.ts') ? failing('1.test.ts') : passing));
    expect(found).toMatchObject({ status: 'survived', unreliable: ['1.test.ts'], runs: ['123', '1 without', '234'] });
  });

  test('is not judged if no test passes without the mutant', async () => {
    expect(await verdict((files) => failing(files[0] ?? ''))).toMatchObject({
      status: 'unjudged',
      runs: expect.any(Array),
    });
  });

  test('is a timeout that names the files that did not end', async () => {
    const hanging: Run = {
      ...passing,
      status: 'timeout',
      events: [{ kind: 'passed', file: '1.test.ts', seconds: 1 }],
    };
    const found = await verdict((_, isMutated) => (isMutated ? hanging : passing));
    expect(found).toMatchObject({ status: 'timeout', by: '2.test.ts 3.test.ts', runs: ['123', '23 without'] });
  });

  test('is killed when tests leave mounts behind only with the mutant', async () => {
    const found = await verdict((_, isMutated) => (isMutated ? { ...passing, leftMounts: ['/tmp/a'] } : passing));
    expect(found).toMatchObject({ status: 'killed', runs: ['123', '123 without'] });
  });

  test('is gone when the mutant’s lines no longer exist, and no test runs', async () => {
    expect(await verdict(() => passing, 'x = a;\n')).toMatchObject({ status: 'gone', runs: [] });
  });
});

test('a batch contains the files that fit into the remaining time, and as many as the budget demands', () => {
  const durations = new Map([
    ['a', 50],
    ['b', 10],
    ['c', 10],
    ['d', 1],
  ]);
  expect(nextBatch(['a', 'b', 'c', 'd'], durations, budget, 3)).toEqual(['a']);
  expect(nextBatch(['a', 'b', 'c', 'd'], durations, { seconds: 15, atLeast: 0 }, 3)).toEqual(['b', 'd']);
  expect(nextBatch(['b', 'c', 'd'], durations, budget, 2)).toEqual(['b', 'c']);
});

test('the report ends with a table by top folder and the totals', () => {
  const common = { passed: 2, related: 3, seconds: 1.25, left: [] };
  const killed = { mutant, verdict: { ...common, status: 'killed', by: 'src/a/x.test.ts' } } as const;
  const survived = { mutant, verdict: { ...common, status: 'survived', left: ['loop device /dev/loop1'] } } as const;
  expect(verdictLine(killed)).toBe('killed      1.3 s  src/a/x.ts:1  === → !==  (by src/a/x.test.ts)');
  expect(reportLines([killed, survived], new Map([['src/a/y.test.ts', 'failed']]))).toEqual([
    'Survived:',
    '  src/a/x.ts:1  === → !==',
    '',
    'Left behind while a mutant was there, and removed:',
    '  src/a/x.ts:1: loop device /dev/loop1',
    '',
    'Did not pass without a mutant either, so not counted:',
    '  src/a/y.test.ts: failed',
    '',
    'folder              mutants  killed  survived',
    'src/a                     2       1         1',
    '',
    '1 killed, 1 survived of 2',
  ]);
  const unjudged = { mutant, verdict: { ...common, status: 'unjudged', passed: 0 } } as const;
  expect(verdictLine(unjudged)).toContain('(none of 3 related test files passes without a mutant)');
  expect(reportLines([unjudged], new Map()).at(-1)).toBe('0 killed, 0 survived, 1 unjudged of 1');
});

test('npm run mutants tests a copy of a checkout and removes the copy', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-mutants-'));
  const checkout = join(folder.path, 'checkout');
  const temporary = join(folder.path, 'tmp');
  mkdirSync(join(checkout, 'src', 'a'), { recursive: true });
  mkdirSync(temporary);
  symlinkSync(join(repository, 'node_modules'), join(checkout, 'node_modules'));
  const source = 'export const isSmall = (n: number): boolean => n < 10;\nexport const unused = 1;\n';
  const files = {
    'package.json': '{ "type": "module" }\n',
    'vitest.config.ts': `export default { test: { include: ['src/**/*.test.ts'] } };\n`,
    'src/a/a.ts': source,
    'src/a/a.test.ts': [
      `import { expect, test } from 'vitest';`,
      `import { isSmall } from './a.ts';`,
      `test('10 is not small', () => expect(isSmall(10)).toBe(false));`,
    ].join('\n'),
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(checkout, name), text);
  const chosen = changesOf('src/a/a.ts', source).map((change) =>
    mutantOf({ path: 'src/a/a.ts', text: source }, change),
  );
  const list = join(folder.path, 'list.json');
  const mutants = chosen.filter(({ replacement }) => ['<=', '2'].includes(replacement));
  writeFileSync(list, JSON.stringify([...mutants, { ...mutant, file: 'src/a/removed.ts' }]));

  const words = ['--checkout', checkout, '--from', list];
  const run = promisify(execFile)(process.execPath, [join(import.meta.dirname, 'mutants.ts'), ...words], {
    env: { ...process.env, TMPDIR: temporary },
    timeout: 50_000,
  });
  const failed: { readonly code: number; readonly stdout: string } = await run.then(
    ({ stdout }) => ({ code: 0, stdout }),
    (error) => error,
  );
  const lines = failed.stdout.trimEnd().split('\n');
  expect([failed.code, lines.at(-1)]).toEqual([1, '1 killed, 1 survived, 1 gone of 3']);
  expect(lines[0]).toMatch(/^1\/3 killed .* s {2}src\/a\/a\.ts:1 {2}< → <= {2}\(by src\/a\/a\.test\.ts\)$/);
  expect(lines[1]).toMatch(/^2\/3 survived .* s {2}src\/a\/a\.ts:2 {2}1 → 2 {2}\(1 of 1 related test files passed\)$/);
  expect(readFileSync(join(checkout, 'src/a/a.ts'), 'utf8')).toBe(source);
  expect(readdirSync(temporary).filter((name) => name.startsWith('sm-'))).toEqual([]);
});
