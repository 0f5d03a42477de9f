import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

/**
 * Generates src/wire/csi/generated from the specifications: `node scripts/csi-messages.ts`. Needs Go, whose module proxy has
 * them, and npm, which downloads the compiler for this run. The result is committed.
 */
const specification = 'github.com/container-storage-interface/spec@v1.13.0';
const kubelet = 'k8s.io/kubelet@v0.35.4';
const compiler = '@bufbuild/buf@1.74.0';
/** Must match the version of @bufbuild/protobuf. */
const generator = '@bufbuild/protoc-gen-es@2.16.0';
const services = ['csi.v1.Identity', 'csi.v1.Controller', 'csi.v1.Node', 'pluginregistration.Registration'];

const out = join(dirname(import.meta.dirname), 'src', 'wire', 'csi', 'generated');

/**
 * CSI 1.13 replaced the volume condition by a separate interface. Kubelets will read the old field for years, and its
 * number is reserved, so this script adds the field again.
 */
const condition = 'VolumeCondition volume_condition = 2;';
const restoredLines: readonly (readonly [line: string, instead: string, times: number])[] = [
  ['    reserved 2;\n', `    ${condition}\n`, 2],
  ['\n  reserved 2;\n', `\n  ${condition}\n`, 1],
  ['reserved 11;', 'VOLUME_CONDITION = 11 [(alpha_enum_value) = true];', 1],
  ['reserved 4;', 'VOLUME_CONDITION = 4 [(alpha_enum_value) = true];', 1],
];
const message = `
message VolumeCondition {
  option (alpha_message) = true;
  // The volume is not as it should be.
  bool abnormal = 1;
  // Describes the condition, for people.
  string message = 2;
}
`;

function withCondition(text: string): string {
  let result = text;
  for (const [line, instead, times] of restoredLines) {
    const found = result.split(line).length - 1;
    if (found !== times) throw new Error(`${JSON.stringify(line)} is there ${found} times, not ${times}`);
    result = result.replaceAll(line, instead);
  }
  return result + message;
}

function folderOf(module: string): string {
  const output = execFileSync('go', ['mod', 'download', '-json', module], { encoding: 'utf8', timeout: 120_000 });
  return (JSON.parse(output) as { readonly Dir: string }).Dir;
}

const work = mkdtempSync(join(tmpdir(), 'stowage-csi-'));
const proto = join(work, 'proto');
mkdirSync(proto);
writeFileSync(
  join(proto, 'csi.proto'),
  withCondition(readFileSync(join(folderOf(specification), 'csi.proto'), 'utf8')),
);
const registration = readFileSync(join(folderOf(kubelet), 'pkg/apis/pluginregistration/v1/api.proto'), 'utf8');
writeFileSync(join(proto, 'registration.proto'), registration);
writeFileSync(
  join(work, 'buf.gen.yaml'),
  // Node only strips types and can't run an enum.
  `version: v2
plugins:
  - local: protoc-gen-es
    out: made
    opt: [target=ts, import_extension=ts, erasable_syntax=true]
`,
);
writeFileSync(join(work, 'package.json'), '{"private": true}');
execFileSync('npm', ['install', '--no-save', '--ignore-scripts', compiler, generator], { cwd: work, stdio: 'inherit' });
execFileSync(
  join(work, 'node_modules', '.bin', 'buf'),
  ['generate', 'proto', ...services.flatMap((name) => ['--type', name])],
  { cwd: work, stdio: 'inherit', env: { ...process.env, PATH: `${work}/node_modules/.bin:${process.env['PATH']}` } },
);
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
cpSync(join(work, 'made', 'csi_pb.ts'), join(out, 'csi.ts'));
cpSync(join(work, 'made', 'registration_pb.ts'), join(out, 'registration.ts'));
rmSync(work, { recursive: true });
